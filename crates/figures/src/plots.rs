//! The figures as plots: SVG, nanoseconds on a logarithmic scale.

use std::path::Path;

use plotters::prelude::*;

/// A line of a plot: its name, and points of predicates and nanoseconds.
pub type Line = (String, Vec<(f64, f64)>);

/// Draws lines to a file. A time of nothing or less, which the kernel's may come out as, is drawn at the least.
///
/// # Errors
/// If the file cannot be written.
pub fn draw(path: &Path, title: &str, across: &str, lines: &[Line]) -> Result<(), String> {
    const LEAST: f64 = 0.5;
    let fail = |e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
    let points = || lines.iter().flat_map(|(_, points)| points);
    let right = points().map(|p| p.0).fold(1.0, f64::max);
    let top = points().map(|p| p.1).fold(LEAST, f64::max) * 1.5;
    let area = SVGBackend::new(path, (860, 480)).into_drawing_area();
    area.fill(&WHITE).map_err(|e| fail(&e))?;
    let mut builder = ChartBuilder::on(&area);
    builder.caption(title, ("sans-serif", 18)).margin(12).margin_right(210).x_label_area_size(40).y_label_area_size(56);
    let mut chart = builder.build_cartesian_2d(0.0..right, (LEAST..top).log_scale()).map_err(|e| fail(&e))?;
    let mut mesh = chart.configure_mesh();
    mesh.x_desc(across).y_desc("ns per packet").light_line_style(WHITE).draw().map_err(|e| fail(&e))?;
    drop(mesh);
    for (i, (name, points)) in lines.iter().enumerate() {
        let color = Palette99::pick(i).to_rgba();
        let series =
            LineSeries::new(points.iter().map(|(x, y)| (*x, y.max(LEAST))), color.stroke_width(2)).point_size(3);
        chart.draw_series(series).map_err(|e| fail(&e))?;
        let y = 50 + 18 * i as i32;
        let key = PathElement::new([(650, y + 6), (670, y + 6)], color.stroke_width(2));
        area.draw(&key).map_err(|e| fail(&e))?;
        area.draw(&Text::new(name.clone(), (676, y), ("sans-serif", 12))).map_err(|e| fail(&e))?;
    }
    drop(chart);
    area.present().map_err(|e| fail(&e))
}
