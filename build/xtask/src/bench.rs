//! `cargo xtask bench boot`: how long a boot takes and how large things are.
//! A table, no verdict. `bench supervisor` is in a module of its own.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use e2e::{
    API_PORT, Cache, ImageDir, Kubectl, RunDir, Vm, VmConfig, create_raw_disk, probe,
    write_kubeconfig,
};
use serde_json::{Value, json};

use crate::compile::Flavour;
use crate::host::{self, For};
use crate::ui::Ui;
use crate::{demo, node_image};

/// Longest time for one phase, and for the shutdown at the end.
const DEADLINE: Duration = Duration::from_secs(300);

/// Size of the data disk, sparse.
const DISK_BYTES: u64 = 8 << 30;

/// Phases the node announces, and the row's title.
const PHASES: &[(&str, &str)] = &[
    ("mounted", "PID 1"),
    ("tree", "tree running"),
    ("storage", "storage healthy"),
    ("controlplane", "API ready"),
    ("node-ready", "node Ready"),
];

/// What to measure.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Bench {
    /// Time from power-on to each step, memory of `hamlet`, size of the image.
    Boot {
        /// Boots; the table shows the median of each row.
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=50))]
        runs: u32,
        /// Optimised build.
        #[arg(long)]
        release: bool,
    },
    /// The tree and the log: restart storm, death to next run, appends per second, bytes per
    /// entry, against floors and other loggers.
    Supervisor(crate::bench_supervisor::Arguments),
}

/// Measures.
///
/// # Errors
/// The image cannot be built or does not come up.
pub(crate) fn run(ui: &Ui, bench: &Bench) -> Result<()> {
    let (runs, release) = match bench {
        Bench::Boot { runs, release } => (runs, release),
        Bench::Supervisor(arguments) => return crate::bench_supervisor::run(ui, arguments),
    };
    host::ensure(ui, For::Build)?;
    let built = node_image::build(ui, Flavour { faults: false, release: *release })?;
    let image = ImageDir::open(built.folder)?;
    let mut rows: BTreeMap<usize, (String, &str, Vec<f64>)> = BTreeMap::new();
    for number in 1..=*runs {
        let mut stage = ui.stage(&format!("boot {number} of {runs}"));
        for (row, (name, unit, value)) in
            boot(&image, &mut |text| stage.note(text))?.into_iter().enumerate()
        {
            rows.entry(row).or_insert_with(|| (name, unit, Vec::new())).2.push(value);
        }
        stage.done("");
    }
    let mut table = vec![];
    for (name, unit, values) in rows.into_values() {
        table.push((name, unit, median(values)));
    }
    let mib = |bytes: &u64| *bytes as f64 / f64::from(1 << 20);
    for (name, bytes) in &built.manifest.sizes {
        table.push((format!("size of {name}"), "MiB", mib(bytes)));
    }
    let text: Vec<String> =
        table.iter().map(|(name, unit, value)| format!("{name:<28} {value:>9.1} {unit}")).collect();
    let rows: Vec<Value> = table
        .iter()
        .map(|(name, unit, value)| json!({ "name": name, "unit": unit, "value": value }))
        .collect();
    ui.result(&text.join("\n"), json!({ "event": "bench", "runs": runs, "rows": rows }));
    Ok(())
}

type Row = (String, &'static str, f64);

fn boot(image: &ImageDir, note: &mut dyn FnMut(&str)) -> Result<Vec<Row>> {
    let accelerator = probe(&image.kernel())?;
    let run = RunDir::new()?;
    let disk = run.join("data.img");
    create_raw_disk(&disk, DISK_BYTES)?;
    let config = VmConfig::new(image.clone(), accelerator)
        .data_disk(disk, Cache::Writeback)
        .forward(0, API_PORT);
    let vm = Vm::start(&config, run)?;
    let mut rows = Vec::new();
    for (phase, title) in PHASES {
        note(title);
        let (at, _) = vm.serial().wait_for(&format!("HAMLET phase={phase} "), DEADLINE)?;
        rows.push(((*title).to_owned(), "s", at.as_secs_f64()));
    }
    let mut channel = vm.channel();
    let kubeconfig = vm.run_dir().join("kubeconfig");
    write_kubeconfig(&mut channel, vm.port(API_PORT)?, &kubeconfig)?;
    let kubectl = Kubectl::new(image.folder().join("kubectl"), kubeconfig);
    note("demonstration");
    demo::apply(&kubectl)?;
    demo::wait_bound(&kubectl)?;
    rows.push(("first claim Bound".to_owned(), "s", vm.uptime().as_secs_f64()));
    demo::wait_running(&kubectl)?;
    rows.push(("pod Running".to_owned(), "s", vm.uptime().as_secs_f64()));
    let status = channel.call("status", json!({}))?;
    for (key, title) in [("rss_bytes", "hamlet, resident"), ("logtree_bytes", "of it logs")] {
        let bytes = status[key].as_u64().with_context(|| format!("the node sent no {key}"))?;
        rows.push((title.to_owned(), "MiB", bytes as f64 / f64::from(1 << 20)));
    }
    note("shutdown");
    channel.call("poweroff", json!({}))?;
    let before = vm.uptime();
    vm.serial().wait_end(DEADLINE);
    rows.push(("orderly power-off".to_owned(), "s", (vm.uptime() - before).as_secs_f64()));
    Ok(rows)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 {
        values[middle]
    } else {
        f64::midpoint(values[middle - 1], values[middle])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_or_between_the_two_middles() {
        assert!((median(vec![3.0, 1.0, 2.0]) - 2.0).abs() < f64::EPSILON);
        assert!((median(vec![4.0, 1.0, 2.0, 3.0]) - 2.5).abs() < f64::EPSILON);
    }
}
