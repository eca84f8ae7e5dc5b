"""What `trnt bench` measures: cases of kernels, checkpoints and data, against a reference and this machine's peaks."""
