// PageRank by a crate: crates TOOL GRAPH RANKS STEPS TOLERANCE; see pypi.py.
use std::{env, fs};

fn by_graph(pages: usize, links: &[(u32, u32)], steps: usize, tolerance: f64) -> Vec<f64> {
    use graph::prelude::*;
    // It has as many pages as the greatest number in a link; those after it are unknown to it.
    let web: DirectedCsrGraph<u32> = GraphBuilder::new()
        .csr_layout(CsrLayout::Sorted)
        .edges(links.iter().copied())
        .build();
    let (ranks, _, _) = page_rank(&web, PageRankConfig::new(steps, tolerance, 0.85));
    let mut found: Vec<f64> = ranks.into_iter().map(f64::from).collect();
    found.resize(pages, f64::NAN);
    found
}

fn by_petgraph(pages: usize, links: &[(u32, u32)], steps: usize) -> Vec<f64> {
    let mut web = petgraph::graph::DiGraph::<(), ()>::new();
    for _ in 0..pages {
        web.add_node(());
    }
    for &(source, target) in links {
        web.add_edge(source.into(), target.into(), ());
    }
    petgraph::algo::page_rank::page_rank(&web, 0.85_f64, steps)
}

fn main() {
    let given: Vec<String> = env::args().collect();
    let bytes = fs::read(&given[2]).unwrap();
    let numbers: Vec<u32> = bytes.chunks_exact(4).map(|four| u32::from_le_bytes(four.try_into().unwrap())).collect();
    let pages = numbers[0] as usize;
    let links: Vec<(u32, u32)> = numbers[2..].chunks_exact(2).map(|two| (two[0], two[1])).collect();
    let (steps, tolerance) = (given[4].parse().unwrap(), given[5].parse().unwrap());
    let ranks = match given[1].as_str() {
        "graph" => by_graph(pages, &links, steps, tolerance),
        "petgraph" => by_petgraph(pages, &links, steps),
        tool => panic!("no tool {tool}"),
    };
    fs::write(&given[3], ranks.iter().flat_map(|rank| rank.to_le_bytes()).collect::<Vec<u8>>()).unwrap();
}
