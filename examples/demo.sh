#!/usr/bin/env bash
# The demo of README: doctor, train, export, load, a sentence. Usage: examples/demo.sh [FOLDER WITH trnt AND python]
set -euo pipefail
cd "$(dirname "$0")/.."
bin=${1:+$1/}
say() { printf '\n\033[1m$ %s\033[0m\n' "$*"; }

say trnt doctor
"${bin}trnt" doctor

say trnt train --recipe laptop
"${bin}trnt" train --recipe laptop

say trnt export --to hf
"${bin}trnt" export --to hf

run=$(ls -dt runs/*/ | head -n 1)
run=${run%/}
say python examples/sample.py "$run/hf"
"${bin}python" examples/sample.py "$run/hf"

cat <<END

The run:       $run
The picture:   $run/loss.png
The model:     $run/hf
TensorBoard:   ${bin}tensorboard --logdir $run/tb
END
