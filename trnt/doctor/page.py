"""docs/doctor.md, written from the tables: `python -m trnt.doctor.page`. A test holds the page to them."""

from __future__ import annotations

from trnt.doctor.facts import INSTANCES, SDKS, SYMPTOMS, VARIABLES
from trnt.doctor.run import CHECKS

INTRODUCTION = """\
# `trnt doctor`

<!-- written by `python -m trnt.doctor.page`; a test compares -->

Is this machine ready? Every line is a check; what is wrong comes with a line to paste. Nothing is changed, and nothing
falls over: whatever crashes, hangs or is missing becomes a finding.

```sh
trnt doctor
trnt doctor --fast
trnt doctor --only packages --only device.kind
trnt doctor --list
trnt doctor --json
```

On a machine without Trainium the checks of the Neuron driver, tools and runtime are skipped, and the exit code is 0
when the rest is fine. `--require neuron` makes the absence a failure, `--strict` makes warnings fail, `--nodes 2` asks
for what several machines need, `--fast` leaves out whatever starts torch or waits for a network, and `--report FILE`
writes a bundle for a bug report without user, host and instance names or tokens. Exit codes: 0 ready, 1 something
failed, 2 usage.

The Neuron checks follow the SDK's documents and were tested on made-up machines; they were *not run on hardware*.
"""


def page() -> str:
    """The whole page."""
    lines = [INTRODUCTION]
    group = ""
    for check in CHECKS:
        if check.group != group:
            group = check.group
            lines += [f"## {group}", "", "| check | looks at | when it fails you see |", "|---|---|---|"]
        notes = [
            note for note, there in (("Neuron machines only", check.neuron), ("not with --fast", check.slow)) if there
        ]
        looks = check.looks + (f" ({', '.join(notes)})" if notes else "")
        lines.append(f"| `{check.id}` | {looks} | {check.symptom} |")
        following = CHECKS.index(check) + 1
        if following == len(CHECKS) or CHECKS[following].group != group:
            lines.append("")
    lines += ["## Messages and what to type", "", "| message | fix |", "|---|---|"]
    lines += [f"| `{sign}` | `{fix}` |" for sign, fix in SYMPTOMS]
    lines += ["", "## Variables that make trouble", "", "| variable | set to | | why |", "|---|---|---|---|"]
    lines += [f"| `{v.name}` | {' or '.join(v.values) or 'anything'} | {v.status} | {v.why} |" for v in VARIABLES]
    parts = list(next(iter(SDKS.values())))
    lines += ["", "## SDK releases that are known to fit together", "", f"| SDK | {' | '.join(parts)} |"]
    lines += ["|---" * (len(parts) + 1) + "|"]
    lines += [f"| {sdk} | {' | '.join(row.get(part, '') for part in parts)} |" for sdk, row in SDKS.items()]
    lines += ["", "## Instances", "", "| instance | chips | logical cores, LNC 2 | LNC 1 |", "|---|---|---|---|"]
    lines += [f"| {n} | {i.chips} | {i.cores_lnc2 or '-'} | {i.cores_lnc1} |" for n, i in INSTANCES.items()]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    import sys

    sys.stdout.write(page())
