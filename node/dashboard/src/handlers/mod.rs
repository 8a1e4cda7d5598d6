//! What each route answers.
//!
//! Purpose: thin: takes one moment of the sources, hands it to a page or a JSON type. Must not
//! know: access, headers, connections (the shell of the router does those).

pub(crate) mod api;
pub(crate) mod health;
pub(crate) mod pages;
pub(crate) mod writes;
