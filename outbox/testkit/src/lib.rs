//! Suites that every store and transport of outbox must pass, fault doubles, and a checker of histories.
