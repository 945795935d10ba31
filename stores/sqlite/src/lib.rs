//! An outbox in SQLite: on one machine, with nothing to install.
