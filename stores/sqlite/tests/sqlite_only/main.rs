//! What only a SQLite file can do or break: query plans, processes on one file, files that are not what they should be, programs in other
//! languages, a writer that does not let go.

mod bad_files;
mod foreign;
mod locks;
mod plans;
mod processes;
mod support;
