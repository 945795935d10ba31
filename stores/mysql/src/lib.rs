//! An outbox in MySQL or MariaDB.
