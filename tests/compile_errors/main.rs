//! Compile errors for every mistake that a user is likely to make, word for word: they are part of
//! the product.
//!
//! Exact on the compiler that the project is built with. In `derive`, only `not_a_key.rs` shows the
//! compiler's own words; the others are ours alone. In `handlers` the compiler's words lead to the
//! right signature. After a change on purpose, write them anew with `TRYBUILD=overwrite` and read
//! the difference.
//!
//! A package of its own: trybuild compiles the dependencies of the package that it runs in once
//! more, and those of the engine's tests take minutes.

/// One test, because two would take turns, each with a build.
#[test]
fn every_mistake_in_an_event_or_a_handler_is_explained_on_the_spot() {
    let programs = trybuild::TestCases::new();
    programs.compile_fail("derive/*.rs");
    programs.compile_fail("handlers/*.rs");
}
