"""Print the run ids of all presets, and of all methods on a few tasks: equal for every version of Hydra."""

from knot_runner.composing.commands import compose_all
from knot_runner.util.config_yaml import choices
from knot_runner.util.errors import UserError

TASKS = ("sa", "nli", "femnist", "cifar100")


def main() -> None:
    commands = [f"experiment={name}" for name in choices("experiment")]
    commands += [f"method={method} task={task}" for method in choices("method") for task in TASKS]
    for command in commands:
        try:
            jobs, _ = compose_all(["hardware=cpu", *command.split()])
            ids = " ".join(job.run_id for job in jobs)
        except UserError as problem:
            ids = str(problem)
        print(command, ids)


if __name__ == "__main__":
    main()
