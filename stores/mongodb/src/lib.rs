//! An outbox in MongoDB.
