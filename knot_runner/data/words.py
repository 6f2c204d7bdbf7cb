"""Vocabulary of the generated texts.

Each domain has words that occur in no other domain. The words in the constants ``COMMON_...`` occur in every domain,
with the same meaning.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

Words = tuple[str, ...]


def _words(text: str) -> Words:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _field(text: str) -> Any:
    """Return the comma-separated words. If ``text`` has bars, return one tuple of words per label (or pair of acts)."""
    if "|" not in text:
        return _words(text)
    return tuple(map(_words, text.split("|")))


def _table(text: str) -> dict[str, Any]:
    """Return a dict from domain to its fields. Slashes separate fields; an indented line continues the previous line.

    The last field has words for each label. A domain without label words gets the words of all other domains, label by
    label.
    """
    domains = {}
    for line in text.replace("\n    ", " ").strip().splitlines():
        name, _, fields = line.partition(": ")
        domains[name] = tuple(_field(field) for field in fields.split("/"))
    labels = zip(*(fields[-1] for fields in domains.values()), strict=True)
    pooled = tuple(tuple(chain.from_iterable(words)) for words in labels)
    for name, (*others, last) in domains.items():
        if not any(last):
            domains[name] = (*others, pooled)
    return domains


#: opinion words for five levels, worst to best
COMMON_OPINIONS = _field(
    "terrible, awful, useless | poor, weak, disappointing | okay, average, acceptable | good, nice, decent | "
    "excellent, perfect, wonderful"
)
#: domain -> things, and opinion words for five levels. Grocery, the transfer set, has the opinion words of all other
#: domains, so that its texts reveal what each local model has learned
SENTIMENT = _table("""
cell: battery, screen, charger, case, signal, headset, cable, speaker / dead, bricked, overheating | laggy, scratched,
    dim | standard, basic, compatible | snappy, crisp, slim | blazing, flawless, indestructible
cloths: shirt, sleeve, zipper, fabric, collar, boot, seam, jacket / torn, shredded, unwearable | itchy, baggy, faded |
    plain, casual, regular | comfy, soft, fitted | gorgeous, stunning, luxurious
toys: puzzle, doll, robot, block, puppet, train, kite, board / dangerous, toxic, shattered | flimsy, boring, wobbly |
    simple, usual, ordinary | fun, colorful, sturdy | magical, thrilling, adorable
food: coffee, soup, sauce, cracker, tea, cereal, noodle, snack / rotten, disgusting, moldy | stale, bland, soggy |
    edible, mild, filling | tasty, fresh, crunchy | delicious, heavenly, divine
grocery: basket, label, bag, box, jar, pack, bottle, wrapper / ||||
""")

#: phrases of every domain for anger, happiness, no emotion, sadness, surprise
COMMON_FEELINGS = _field(
    "i am so angry, stop it right now | i am so happy, this is great | i see, let us go on | i am so sad, i feel down "
    "| what a surprise, i did not expect that"
)
#: openings that fit any emotion, so that only the context reveals the emotion
FILLERS = _field("oh my, you know, well then, listen, come on, really")
#: domain -> things, and phrases for the five emotions. Travel, the transfer set, has the phrases of all other domains
EMOTION = _table("""
sitcom: the couch, the wedding, your roommate, the date, the monkey, the apartment / you ruined everything, get out of
    here | we are engaged, that is hilarious | the door is open, she is in the kitchen | he broke up with me, nobody
    called | shut up, you did what
stage: the rehearsal, the script, the curtain, the director, the audience, the costume / this is an outrage, how dare
    they | they gave us an ovation, what a triumph | we begin at seven, turn the page | the show is cancelled, my
    voice is gone | good heavens, the lights went out
office: the report, the meeting, the invoice, the printer, the client, the contract / this is unacceptable, i will
    complain to the manager | we got the promotion, congratulations to the team | it is due on monday, please sign
    here | they laid me off, we lost the account | is it approved already, that was quick
school: the exam, the library, the teacher, the lecture, the dormitory, the essay / that grade is unfair, he copied my
    homework | i passed the test, vacation starts tomorrow | the class is at nine, open your books | i failed again, i
    miss my classmates | a pop quiz, full marks for me
family: the dinner, the garden, the baby, the car, grandmother, the kitchen / go to your room, you never help | she
    said her first word, we are so proud | dinner is at six, feed the cat | grandpa is in hospital, the dog ran away |
    twins, you are home early
travel: the ticket, the hotel, the airport, the luggage, the beach, the train / ||||
""")

#: words that mark a second sentence as entailment, neutral or contradiction
COMMON_CUES = _field("indeed, of course | perhaps, for a friend | never, nobody says")
#: domain -> people, places, pairs of opposite acts, and cues for the three labels. Encyclopedia, the transfer set, has
#: the cues of all other domains
INFERENCE = _table("""
fiction: the knight, the stranger, the captain, the widow, the thief / in the castle, by the river, at the inn, under
    the moon / whispered, shouted | vanished, appeared | rode away, stood still | laughed, wept / as told, in the tale
    | out of love, in secret | a lie, by no means
government: the agency, the senate, the auditor, the committee, the governor / in the report, under the act, during
    the review, in the budget / approved, rejected | raised the tax, cut the tax | published, withheld | expanded,
    shrank / as required, by statute | for reform, under pressure | failed to, contrary to record
magazine: the critic, the columnist, the candidate, the editor, the pundit / on the cover, in the column, on
    television, in the interview / praised, mocked | won, lost | admitted, denied | resigned, returned / in short, so
    to speak | for the money, among rivals | hardly, a myth
telephone: my neighbor, my boss, my daughter, the mechanic, my cousin / on the phone, at home, down the road, in texas
    / called back, hung up | bought it, sold it | moved in, moved out | paid, owed / yeah, uh huh | i guess, because
    of kids | no way, not at all
guidebook: the tourist, the guide, the pilgrim, the fisherman, the king / at the temple, in the old town, along the
    coast, near the market / arrived, departed | climbed up, walked down | built, destroyed | opened, closed / as seen
    today, in view | for the festival, with a map | was banned, long gone
photos: a man, a woman, a boy, a girl, a dog / in the park, on the street, at the beach, in a kitchen / is running, is
    sleeping | is standing, is sitting | is smiling, is crying | jumps, rests / outdoors, a person | for the first
    time, with a sister | nothing, is empty
encyclopedia: the scientist, the band, the company, the river, the emperor / in europe, in the century, during the
    war, at the university / began, ended | grew, declined | joined, left | rose, fell / ||
""")
