// SPDX-License-Identifier: Apache-2.0
//! Text tables without ruled lines.

use comfy_table::{CellAlignment, Table, presets};

/// Columns as wide as their cells, two spaces apart. Columns in `left` are aligned left, the others right.
pub(crate) fn columns(head: &[&str], left: &[usize], rows: &[Vec<String>]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(head.to_vec()).add_rows(rows.to_vec());
    for (n, column) in table.column_iter_mut().enumerate() {
        column.set_padding((if n == 0 { 0 } else { 2 }, 0));
        column.set_cell_alignment(if left.contains(&n) { CellAlignment::Left } else { CellAlignment::Right });
    }
    table.trim_fmt() + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_cells() {
        let rows = [["a", "1", "x"], ["longer", "1000", "y z"]].map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(
            columns(&["name", "n", "note"], &[0, 2], &rows),
            "name       n  note\na          1  x\nlonger  1000  y z\n"
        );
        assert_eq!(columns(&["name", "\u{fc}"], &[0], &[]), "name  \u{fc}\n");
    }
}
