"""Tables that show the results of runs next to the numbers printed in the papers, with footnotes."""
