//! Compiles the `.proto` files of this crate into Rust, without a system `protoc`.
//!
//! Generated at build time rather than kept in the tree: then the code cannot be
//! out of date, and a change of a message is a diff of its `.proto` alone. The
//! price is compiling protox once per target directory, beside other crates.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let files = protox::compile(["proto/csi.proto", "proto/registration.proto"], ["proto"])?;
    tonic_prost_build::configure().compile_fds(files)?;
    Ok(())
}
