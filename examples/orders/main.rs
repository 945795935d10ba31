//! `orders`: what happens in a shop, from a file or made up.

mod generate;
mod input;
