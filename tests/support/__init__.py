"""What tests of several rooms share: real servers, started once."""
