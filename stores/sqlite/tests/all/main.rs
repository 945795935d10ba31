//! Every test of the store on real files.

mod conformance;
mod inbox;
mod sqlite_only;
