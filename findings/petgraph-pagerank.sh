#!/usr/bin/env bash
# petgraph 0.8.3: page_rank converges to something that is not PageRank where pages have no links. More steps do not help.
#   by definition [0.0737, 0.2617, 0.0737, 0.0737, 0.2961, 0.0737, 0.0737, 0.0737]
#   20 steps [0.0708, 0.2641, 0.0708, 0.0708, 0.3113, 0.0708, 0.0708, 0.0708], L1 0.0354
#   1000 steps [0.0708, 0.2641, 0.0708, 0.0708, 0.3113, 0.0708, 0.0708, 0.0708], L1 0.0354
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
mkdir src
cat > Cargo.toml <<'TOML'
[package]
name = "run"
version = "0.0.0"
edition = "2021"

[dependencies]
petgraph = "=0.8.3"
TOML
cat > src/main.rs <<'RUST'
use petgraph::{algo::page_rank::page_rank, graph::DiGraph};

const LINKS: [(u32, u32); 4] = [(0, 1), (2, 1), (3, 1), (1, 4)]; // Pages 4 to 7 have no links.
const PAGES: usize = 8;

/// PageRank by its definition: a page without links hands what it has to all pages alike.
fn defined() -> Vec<f64> {
    let mut ranks = vec![1.0 / PAGES as f64; PAGES];
    for _ in 0..1000 {
        let mut after = vec![0.0; PAGES];
        for &(source, target) in &LINKS {
            let links = LINKS.iter().filter(|link| link.0 == source).count();
            after[target as usize] += 0.85 * ranks[source as usize] / links as f64;
        }
        let rest = 1.0 - after.iter().sum::<f64>();
        ranks = after.iter().map(|rank| rank + rest / PAGES as f64).collect();
    }
    ranks
}

fn main() {
    let mut web = DiGraph::<(), ()>::new();
    for _ in 0..PAGES {
        web.add_node(());
    }
    for (source, target) in LINKS {
        web.add_edge(source.into(), target.into(), ());
    }
    let right = defined();
    println!("by definition {right:.4?}");
    for steps in [20, 1000] {
        let found = page_rank(&web, 0.85_f64, steps);
        let apart: f64 = found.iter().zip(&right).map(|(a, b)| (a - b).abs()).sum();
        println!("{steps} steps {found:.4?}, L1 {apart:.4}");
        assert!((apart - 0.0354).abs() < 1e-3, "it changed");
    }
}
RUST
cargo run --release --quiet
