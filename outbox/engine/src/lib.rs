//! The relay of outbox: moves committed messages from a store to a transport, in order, at least once.
