//! What was measured, as tables between two marks of a document, and as plots beside it.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;

use crate::measure::{LOSS, Load, Measured};

/// Between these the document is written anew.
const BEGIN: &str = "<!-- load-tests: begin -->";
const END: &str = "<!-- load-tests: end -->";

/// Forms, in the order in which they are measured.
pub const FORMS: [&str; 3] = ["original", "bpf-opt", "the original again"];

/// A program with what was measured of it.
#[derive(Clone, Debug)]
pub struct Row {
    /// Its name.
    pub name: String,
    /// What it does with its packets.
    pub verdict: u32,
    /// Slots before and after.
    pub slots: (usize, usize),
    /// Bytes of a packet.
    pub bytes: usize,
    /// Whether its packets come back.
    pub comes_back: bool,
    /// The gain in throughput in the Table 2 of the paper, in percent.
    pub paper: Option<f64>,
    /// Figures.
    pub measured: Measured,
}

/// Writes the tables into a document that has the marks, and the plots into `figures/` beside it.
///
/// # Errors
/// If the document has no marks, or cannot be written.
pub fn write(document: &Path, machine: &str, rows: &[Row], missing: &[String]) -> Result<(), String> {
    let fail = |e: std::io::Error| format!("{}: {e}", document.display());
    let text = fs::read_to_string(document).map_err(fail)?;
    let place = text.find(BEGIN).zip(text.find(END)).filter(|(begin, end)| begin < end);
    let (begin, end) = place.ok_or_else(|| format!("{}: no line {BEGIN} before {END}", document.display()))?;
    let figures = document.with_file_name("figures");
    fs::create_dir_all(&figures).map_err(fail)?;
    let mut new = format!("{BEGIN}\n{machine}\n\n{}\n{}", throughput(rows), latencies(rows));
    for what in missing {
        let _ = writeln!(new, "\nLeft out: {what}.");
    }
    for row in rows {
        let name = format!("load-{}.svg", row.name);
        draw(&figures.join(&name), row)?;
        let _ = write!(new, "\n![{}: throughput, latency and loss by load](figures/{name})\n", row.name);
    }
    fs::write(document, format!("{}{new}{}", &text[..begin], &text[end..])).map_err(fail)
}

fn millions(per_second: f64) -> String {
    format!("{:.3}", per_second / 1e6)
}

fn gain(old: f64, new: f64) -> String {
    format!("{:+.2} %", 100.0 * (new / old - 1.0))
}

/// The paper's Table 2.
fn throughput(rows: &[Row]) -> String {
    let mut text = format!(
        "Throughput, millions of packets per second of one processor: *at most* what gets through when more come than it can take, \
         *loss-free* the highest load asked of the sender, which sends about a tenth less, of which at most {:.1} % is lost (of several \
         windows the one in the middle; <: more was lost at each load that was tried).\n\n",
        100.0 * LOSS
    );
    text += "| program | verdict | bytes | slots | at most: original | bpf-opt | gain | the original again | loss-free: original | bpf-opt | \
             gain | the original again | K2's gain (its Table 2) |\n|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n";
    for row in rows {
        let verdict = match row.verdict {
            1 => "drop",
            3 => "tx",
            4 => "redirect",
            _ => "other",
        };
        let _ = write!(text, "| {} | {verdict} | {} | {} → {} ", row.name, row.bytes, row.slots.0, row.slots.1);
        let all = [true; FORMS.len()];
        let Measured { capacity, loss_free, is_loss_free, .. } = &row.measured;
        for (figures, found) in [(capacity, &all[..]), (loss_free, is_loss_free)] {
            let cell = |i: usize| format!("{}{}", if found[i] { "" } else { "< " }, millions(figures[i]));
            let change = |i: usize| match found[0] && found[i] {
                true => gain(figures[0], figures[i]),
                false => "–".to_owned(),
            };
            let _ = write!(text, "| {} | {} | {} | {} ", cell(0), cell(1), change(1), change(2));
        }
        let paper = row.paper.map_or("–".to_owned(), |percent| format!("{percent:+.2} %"));
        let _ = writeln!(text, "| {paper} |");
    }
    text
}

/// The paper's Table 3.
fn latencies(rows: &[Row]) -> String {
    let mut text = String::from(
        "Latency from sender to receiver in microseconds, of programs whose packets come back: the mean of a window (of several the one in \
         the middle), and what 50, 99 and 99.9 % of all packets do not exceed. *Low* is 0.8 of the lowest of the loss-free loads (of a \
         form that had none, of the lowest that was tried), *medium* that, *high* the highest one, *saturating* all that can be sent.\n\n",
    );
    text += "| program | load | millions per second sent | original: mean (50, 99, 99.9 %) | bpf-opt: mean (50, 99, 99.9 %) | change of the \
             mean | the original again |\n|---|---|---:|---:|---:|---:|---:|\n";
    let names = ["low", "medium", "high", "saturating"];
    for row in rows {
        for (name, Load { forms, means }) in names.iter().zip(&row.measured.latencies) {
            let cell = |form: usize| {
                let parts = [0.5, 0.99, 0.999].map(|share| format!("{:.1}", forms[form].latency(share) / 1e3));
                format!("{:.2} ({})", means[form] / 1e3, parts.join(", "))
            };
            let less = |form: usize| format!("{:+.2} %", 100.0 * (means[form] / means[0] - 1.0));
            let _ = writeln!(
                text,
                "| {} | {name} | {} | {} | {} | {} | {} |",
                row.name,
                millions(forms[0].offered()),
                cell(0),
                cell(1),
                less(1),
                less(2)
            );
        }
    }
    text
}

/// A panel of a plot: its name, and what is drawn of a window.
type Panel = (&'static str, fn(&Load, usize, bool) -> f64);

/// The paper's Appendix H.
fn draw(path: &Path, row: &Row) -> Result<(), String> {
    let panels: [Panel; 3] = [
        ("throughput, millions per second", |load, form, comes_back| load.forms[form].through(comes_back) / 1e6),
        ("mean latency, microseconds", |load, form, _| load.means[form] / 1e3),
        ("lost, %", |load, form, comes_back| 100.0 * load.forms[form].loss(comes_back)),
    ];
    let shown: Vec<Panel> =
        panels.into_iter().filter(|(name, _)| row.comes_back || !name.contains("latency")).collect();
    let area = SVGBackend::new(path, (380 * shown.len() as u32, 300)).into_drawing_area();
    let result: Result<(), Box<dyn std::error::Error + '_>> = (|| {
        area.fill(&WHITE)?;
        for (panel, area) in shown.iter().zip(area.split_evenly((1, shown.len()))) {
            draw_panel(&area, row, *panel)?;
        }
        area.present()?;
        Ok(())
    })();
    result.map_err(|e| format!("{}: {e}", path.display()))
}

fn draw_panel<'a>(
    area: &DrawingArea<SVGBackend<'a>, Shift>,
    row: &Row,
    (name, of): Panel,
) -> Result<(), Box<dyn std::error::Error + 'a>> {
    let points = |form: usize| -> Vec<(f64, f64)> {
        let loads = row.measured.curve.iter();
        let mut points: Vec<_> =
            loads.map(|load| (load.forms[form].offered() / 1e6, of(load, form, row.comes_back))).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        points
    };
    let lines = [points(0), points(1)];
    let most =
        |of: fn(&(f64, f64)) -> f64| lines.iter().flatten().map(of).filter(|v| v.is_finite()).fold(0.0, f64::max);
    let (right, top) = (most(|p| p.0), most(|p| p.1).max(0.1) * 1.15);
    let mut builder = ChartBuilder::on(area);
    builder.caption(format!("{}: {name}", row.name), ("sans-serif", 14)).margin(8);
    builder.x_label_area_size(36).y_label_area_size(44);
    let mut chart = builder.build_cartesian_2d(0.0..right, 0.0..top)?;
    chart.configure_mesh().x_desc("sent, millions per second").light_line_style(WHITE).draw()?;
    for (i, (line, form)) in lines.into_iter().zip(FORMS).enumerate() {
        let color = Palette99::pick(i).to_rgba();
        let series = LineSeries::new(line, color.stroke_width(2)).point_size(3);
        chart
            .draw_series(series)?
            .label(form)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], color.stroke_width(2)));
    }
    let place =
        if name.starts_with("through") { SeriesLabelPosition::LowerRight } else { SeriesLabelPosition::UpperLeft };
    chart.configure_series_labels().position(place).border_style(BLACK).background_style(WHITE).draw()?;
    Ok(())
}
