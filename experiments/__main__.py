"""Run the experiments that need no data set with few rounds, one after the other: whether they still run."""

import subprocess
import sys
import time

#: Arguments of a short run. The others need a data set, a trained run, or minutes.
QUICK = {
    "adapting": "--runs 1 --reads 60 --methods adapt",
    "answer_sets": "--quick",
    "any_hour": "--laboratories 2 --cases 60",
    "class_mix": "--looks 20",
    "gate": "--runs 2",
    "group_jackknife": "--through 10000",
    "monitor": "--years 2 --shifts 2",
    "named_panel": "--quick",
    "named_readers": "--runs 1 --readers 2 --situations alike",
    "pair_form": "--runs 4 --cases 200 --out /dev/null",
    "qualification": "--runs 2",
    "reader_coverage": "--runs 1",
    "reader_drift": "--years 2 --shifts 2",
    "scale": "",
    "selection": "--laboratories 2 --cases 300",
    "specimen_mix": "--quick",
    "specimens_in_a_laboratory": "--quick",
}


def main() -> None:
    failed = []
    for name, arguments in QUICK.items():
        begin = time.monotonic()
        command = [sys.executable, "-m", f"experiments.{name}", *arguments.split()]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        print(f"{name}: {'runs' if done.returncode == 0 else 'fails'}, {time.monotonic() - begin:.0f} s", flush=True)
        if done.returncode:
            failed.append(name)
            print(done.stderr, file=sys.stderr)
    if failed:
        raise SystemExit(f"these do not run: {', '.join(failed)}")


if __name__ == "__main__":
    main()
