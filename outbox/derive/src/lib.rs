//! #[derive(DomainEvent)] for outbox.
