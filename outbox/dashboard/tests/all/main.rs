//! The dashboard, asked as browsers ask it.

#![allow(clippy::unwrap_used, reason = "a panic in a test is a failed test")]

mod access;
mod buttons;
mod faults;
mod forms;
mod hostile;
mod mounted;
mod pages;
mod paging;
mod stores;
mod world;
