// PageRank by a tool of npm, started in the folder that has it: npm.mjs TOOL GRAPH RANKS PARAMETERS; see pypi.py.
import { readFileSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';

const require = createRequire(process.cwd() + '/');
const [tool, graphFile, ranksFile, given] = process.argv.slice(2);
const numbers = new Int32Array(new Uint8Array(readFileSync(graphFile)).buffer);
const pages = numbers[0];
const options = JSON.parse(given);

function byGraphology() {
  const { DirectedGraph } = require('graphology');
  const graph = new DirectedGraph();
  for (let page = 0; page < pages; page++) graph.addNode(page);
  for (let at = 2; at < numbers.length; at += 2) graph.addEdge(numbers[at], numbers[at + 1]);
  return require('graphology-metrics/centrality/pagerank')(graph, { alpha: 0.85, ...options });
}

function byNgraph() {
  const graph = require('ngraph.graph')();
  for (let page = 0; page < pages; page++) graph.addNode(page);
  for (let at = 2; at < numbers.length; at += 2) graph.addLink(numbers[at], numbers[at + 1]);
  return require('ngraph.pagerank')(graph, 0.85, options.precision);
}

const found = { graphology: byGraphology, ngraph: byNgraph }[tool]();
writeFileSync(ranksFile, new Float64Array(Array.from({ length: pages }, (_, page) => found[page])));
