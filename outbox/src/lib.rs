//! The facade of outbox.
