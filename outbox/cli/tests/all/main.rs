//! The program `outbox`, run as people and scripts run it.

#![allow(clippy::unwrap_used, reason = "a panic in a test is a failed test")]

mod acting;
mod backup;
#[cfg(unix)]
mod broker;
#[cfg(unix)]
mod browser;
#[cfg(unix)]
mod daemon;
#[cfg(unix)]
mod dashboard;
mod hostile;
#[cfg(unix)]
mod killed;
mod looking;
mod operating;
#[cfg(all(unix, feature = "otlp"))]
mod otlp;
mod outbox;
#[cfg(unix)]
mod servers;
mod settings;
#[cfg(unix)]
mod signals;
mod usage;
mod world;
