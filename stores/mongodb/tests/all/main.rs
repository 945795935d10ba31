//! Every test of the store on the stand-in for MongoDB.

mod conformance;
mod inbox;
mod mongodb_only;
