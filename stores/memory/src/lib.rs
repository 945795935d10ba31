//! An outbox in memory: for tests, and for trying things out.
