//! Every test of the macro, but what changes the names of a whole program.

mod derive;
