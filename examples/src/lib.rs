//! Programs to copy from, every one run by the tests.
