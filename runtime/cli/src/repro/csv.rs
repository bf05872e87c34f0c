//! Figures as CSV (RFC 4180), a line per cell, each whole in itself; the same as JSON.

use serde_json::Value;

use super::experiment::{Style, Work};
use super::results::{Results, TableResults, ways};

/// Columns.
const COLUMNS: &[&str] = &[
    "experiment",
    "table",
    "row",
    "x",
    "series",
    "unit",
    "ours",
    "published",
    "published_on",
    "device",
    "shape",
    "dtype",
    "kernels",
    "schedules",
    "origin",
    "median_ms",
    "min_ms",
    "repetitions",
    "tflops",
    "max_error",
    "memory_bytes",
    "memory_driver_bytes",
    "registers",
    "spill_bytes",
    "shared_bytes",
    "occupancy",
    "bytes_read",
    "bytes_written",
    "tensor_bytes_read",
    "tensor_bytes_written",
    "flops_per_byte",
    "counted_max_error",
    "warp_instructions",
    "shared_requests",
    "wavefronts",
    "wavefronts_per_load",
    "wavefronts_per_store",
    "sectors",
    "published_bytes_read",
    "published_bytes_written",
    "published_occupancy",
    "published_wavefronts_per_load",
    "published_wavefronts_per_store",
    "note",
];

/// A cell as an object with the columns as keys; those without a value are null, numbers are numbers.
pub fn objects(experiment: &str, results: &Results) -> Vec<Value> {
    let value = |field: String| match field.parse::<f64>() {
        _ if field.is_empty() => Value::Null,
        Ok(number) if number.is_finite() => Value::from(number),
        _ => Value::from(field),
    };
    let object = |fields: Vec<String>| COLUMNS.iter().map(|&c| c.to_owned()).zip(fields.into_iter().map(value)).collect();
    cells(experiment, results).into_iter().map(object).collect()
}

/// The file.
pub fn csv(experiment: &str, results: &Results) -> String {
    let head = line(COLUMNS.iter().map(|&c| c.to_owned()));
    cells(experiment, results).into_iter().fold(head, |out, fields| out + &line(fields))
}

/// The fields of every cell.
fn cells(experiment: &str, results: &Results) -> Vec<Vec<String>> {
    let mut all = Vec::new();
    for table in &results.tables {
        for (r, row) in table.table.rows.iter().enumerate() {
            all.extend((0..row.cells.len()).map(|c| cell(experiment, table, r, c, results)));
        }
    }
    all
}

fn cell(experiment: &str, of: &TableResults, r: usize, c: usize, results: &Results) -> Vec<String> {
    let (table, row) = (&of.table, &of.table.rows[r]);
    let cell = &row.cells[c];
    let number = |x: Option<f64>| x.map(|x| x.to_string()).unwrap_or_default();
    let count = |x: Option<u64>| x.map(|x| x.to_string()).unwrap_or_default();
    let figures = of.figures(r, c);
    let time = figures.and_then(|f| f.time);
    let memory = figures.and_then(|f| f.memory);
    let launches = match &cell.work {
        Work::Ours(sequence) => sequence.launches.as_slice(),
        Work::Peer(_) => &[],
    };
    let code = |value: &dyn Fn(&super::results::Code) -> String| {
        figures.map(|f| f.code.iter().map(value).collect::<Vec<_>>().join(" | ")).unwrap_or_default()
    };
    let known = |x: Option<u32>| x.map(|x| x.to_string()).unwrap_or_default();
    let counted = figures.and_then(|f| f.counted.as_ref());
    let traffic = figures.and_then(|f| f.traffic);
    let tensors = figures.and_then(|f| f.tensors);
    let profiled = cell.profiled.unwrap_or_default();
    vec![
        experiment.to_owned(),
        table.name.to_owned(),
        row.label.clone(),
        if table.style == Style::Steps { String::new() } else { row.x.to_string() },
        cell.series.to_owned(),
        table.unit.text().to_owned(),
        number(of.figure(r, c)),
        number(cell.published),
        table.published_on.unwrap_or_default().to_owned(),
        results.device.clone(),
        figures.map(|f| f.shape.clone()).unwrap_or_default(),
        launches.first().map(|l| l.elem.name().to_owned()).unwrap_or_default(),
        launches.iter().map(|l| l.kernel.name()).collect::<Vec<_>>().join(" | "),
        code(&|code| code.schedule.clone()),
        code(&|code| code.origin.clone()),
        number(time.map(|t| t.0)),
        number(time.map(|t| t.1)),
        time.map(|t| t.2.to_string()).unwrap_or_default(),
        number(time.zip(figures).map(|(t, f)| f.flops / t.0 / 1e9)),
        number(figures.and_then(|f| f.max_error)),
        number(memory.map(|m| m.0)),
        number(memory.and_then(|m| m.1)),
        code(&|code| known(code.registers)),
        code(&|code| known(code.spills)),
        code(&|code| code.shared_bytes.to_string()),
        code(&|code| format!("{:.3}", code.occupancy.0)),
        count(traffic.map(|t| t.0)),
        count(traffic.map(|t| t.1)),
        count(tensors.map(|t| t.0)),
        count(tensors.map(|t| t.1)),
        number(figures.filter(|f| f.traffic.is_some()).map(|f| f.intensity)),
        number(counted.map(|w| w.max_error)),
        count(counted.map(|w| w.total.warp_instructions)),
        count(counted.map(|w| w.total.shared_requests)),
        count(counted.map(|w| w.total.wavefronts)),
        number(counted.and_then(|w| ways(&w.loads))),
        number(counted.and_then(|w| ways(&w.stores))),
        count(counted.map(|w| w.total.sectors)),
        number(profiled.bytes.map(|b| b.0)),
        number(profiled.bytes.map(|b| b.1)),
        number(profiled.occupancy.map(|o| o.0)),
        number(profiled.load_ways),
        number(profiled.store_ways),
        of.cells[r][c].as_ref().err().cloned().unwrap_or_default(),
    ]
}

fn line(fields: impl IntoIterator<Item = String>) -> String {
    let quoted = |field: String| match field.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", field.replace('"', "\"\"")),
        false => field,
    };
    format!("{}\r\n", fields.into_iter().map(quoted).collect::<Vec<_>>().join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_quoted_where_they_must_be() {
        let fields = ["a", "b=1,c=2", "say \"x\""].map(str::to_owned);
        assert_eq!(line(fields), "a,\"b=1,c=2\",\"say \"\"x\"\"\"\r\n");
    }
}
