"""Builds the initial lake as of a Snapshot Cutoff: worker slots stage and compact it, one commit publishes it."""
