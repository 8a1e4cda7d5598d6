//! Measurements of our own crates against floors and against what others would use.
//!
//! Run by `cargo xtask bench supervisor`. Prints rows as one JSON array: name, value, unit, and where
//! there is something to compare with, the ratio and what it is against. Numbers of one run on one
//! machine: ratios mean something, absolute values only on that machine. No verdict.

mod floor;
mod log;
mod row;
mod storm;

use anyhow::{Result, bail};

use crate::row::Row;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let quick = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["supervisor"] => false,
        ["supervisor", "--quick"] => true,
        _ => bail!("use: bench supervisor [--quick]"),
    };
    // Memory first: later measurements leave the allocator with pages of their own.
    let mut rows: Vec<Row> = log::memory();
    rows.extend(storm::all(quick)?);
    rows.extend(log::speed(quick)?);
    println!("{}", serde_json::Value::Array(rows.iter().map(Row::json).collect()));
    Ok(())
}
