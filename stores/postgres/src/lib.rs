//! An outbox in PostgreSQL.
