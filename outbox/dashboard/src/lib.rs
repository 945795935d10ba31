#![doc = include_str!("../README.md")]

mod access;
mod app;
mod assets;
mod builder;
mod cause;
mod format;
mod guard;
mod measured;
mod operation;
mod pages;
mod params;
mod plan;
mod problem;
mod router;
mod sampler;
mod scan;
mod selection;
mod series;
mod session;
mod text;
mod view;
mod visit;

pub use access::{Access, AccessError, Role, User};
pub use builder::{Dashboard, DashboardBuilder};
