"""Print run ids, which must be equal for every Hydra: of every third preset's first job, and of methods on tasks."""

from itertools import cycle

from knot_runner.composing.commands import compose_all
from knot_runner.util.config_yaml import choices
from knot_runner.util.errors import UserError

TASKS = ("sa", "femnist")


def main() -> None:
    commands = [f"experiment={name}" for name in choices("experiment")[::3]]
    commands += [f"method={method} task={task}" for method, task in zip(choices("method")[::5], cycle(TASKS))]
    for command in commands:
        try:
            jobs, _ = compose_all(["hardware=cpu", *command.split()], first=True)
            ids = " ".join(job.run_id for job in jobs)
        except UserError as problem:
            ids = str(problem)
        print(command, ids)


if __name__ == "__main__":
    main()
