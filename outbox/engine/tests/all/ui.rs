//! Messages of the compiler for handlers with a wrong signature: each names the right one.
//!
//! Exact on the compiler that the project is built with. After a change on purpose, write them anew
//! with `TRYBUILD=overwrite` and read the difference.

#[test]
fn a_handler_with_a_wrong_signature_is_told_the_right_one() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
