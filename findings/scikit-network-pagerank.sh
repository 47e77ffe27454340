#!/usr/bin/env bash
# scikit-network 0.33.5: PageRank with the default solver, and with two of the three others, is wrong where pages have no
# links: such a page keeps what it has, where PageRank hands it out to all pages. Here three pages without a link in either
# direction come out above a page that three pages link to. The solver "diteration" is right, given enough steps.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet scikit-network==0.33.5 igraph==1.0.0
cat > "$folder/run.py" <<'PYTHON'
import igraph
import numpy as np
from scipy import sparse
from sknetwork.ranking import PageRank

LINKS = [(0, 1), (2, 1), (3, 1), (1, 4)]  # Page 1 is linked to by three pages; pages 5 to 7 have no links at all.
matrix = sparse.csr_matrix((np.ones(len(LINKS)), np.array(LINKS).T), shape=(8, 8))
right = np.array(igraph.Graph(n=8, edges=LINKS, directed=True).pagerank(damping=0.85))
print("igraph    ", right.round(4))
apart = {}
for solver in ("piteration", "lanczos", "bicgstab", "diteration"):  # The first is the default.
    found = PageRank(damping_factor=0.85, solver=solver, n_iter=200, tol=1e-12).fit_predict(matrix)
    apart[solver] = round(float(np.abs(found - right).sum()), 4)
    print(f"{solver:<10}", found.round(4), "L1", apart[solver], "page 1 below page 5:", bool(found[1] < found[5]))
# igraph     [0.0737 0.2617 0.0737 0.0737 0.2961 0.0737 0.0737 0.0737]
# piteration [0.0255 0.1136 0.0255 0.0255 0.3008 0.1697 0.1697 0.1697] L1 0.5856 page 1 below page 5: True
# lanczos    [0.0255 0.1136 0.0255 0.0255 0.3008 0.1697 0.1697 0.1697] L1 0.5856 page 1 below page 5: True
# bicgstab   [0.0276 0.098  0.0276 0.0276 0.2673 0.184  0.184  0.184 ] L1 0.6617 page 1 below page 5: True
# diteration [0.0737 0.2617 0.0737 0.0737 0.2961 0.0737 0.0737 0.0737] L1 0.0 page 1 below page 5: False
assert apart == {"piteration": 0.5856, "lanczos": 0.5856, "bicgstab": 0.6617, "diteration": 0.0}, "it changed"
PYTHON
"$folder/env/bin/python" "$folder/run.py"
