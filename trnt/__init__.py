"""trnt: training large language models on AWS Trainium, from one command line.

The embedded default device is the CPU, so that every command does its real job on a laptop.
Importing this package imports nothing heavy: no torch, no torchtitan, no transformers.
"""

__version__ = "0.1.0"
