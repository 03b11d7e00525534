# For tests of training: a directory of one's own, a small data set of real text, a model that trains in seconds.
# Sourced with the repository as working directory; leaves it for $tmp.
set -u
tree=$PWD
tmp=$(mktemp -d /tmp/synctrain-train-XXXXXX) || exit 1
trap 'rm -rf "$tmp"' EXIT
compare() { python3 "$tree/tests/train/compare.py" "$@"; }
fail() { echo "FAILED: $*"; exit 1; }
cat common/*.[ch] trainer/*.[ch] libcomm/*.[ch] | head -c 200000 >"$tmp/text"
cd "$tmp" || exit 1
synctrain data text -o data || fail "no data"
cat >tiny.json <<'END'
{
    "name": "tiny",
    "model": {"context": 32, "layers": 2, "heads": 2, "channels": 32},
    "data": {"directory": "data"},
    "batch": {"global": 16, "micro": 2},
    "optimizer": {"learning_rate": 3e-3},
    "eval": {"every": 0},
    "bucket_bytes": 16384,
    "log": {"every": 10},
    "threads": 1,
    "steps": 20
}
END

# ranks N COMMAND...: N ranks on this machine, as if on $nodes nodes.
nodes=1
ranks() {
	local count=$1
	shift
	synctrain run -n "$count" --nodes "$nodes" --no-prefix "$@"
}

# train N KEY=VALUE...: output in "out". Returns the job's exit code.
train() {
	local count=$1
	shift
	ranks "$count" synctrain train tiny.json "$@" >out 2>&1
}
well() { "$@" || { local code=$?; cat out; fail "$* exited with $code"; }; }

# exits CODE COMMAND...: the command must end with this code.
exits() {
	local expected=$1 code=0
	shift
	"$@" || code=$?
	[ "$code" = "$expected" ] || { cat out; fail "$* exited with $code, expected $expected"; }
}
says() { grep -qE -- "$1" out || { cat out; fail "the output lacks: $1"; }; }

# losses FILE: "step loss norm learning-rate" of each step, all digits; a step that was done again after a resume counts as it was last.
losses() {
	python3 -c '
import json, sys
steps = {}
for line in open(sys.argv[1]):
    entry = json.loads(line)
    if "step" in entry:
        steps[entry["step"]] = entry
for step in sorted(steps):
    print(step, *(repr(steps[step][key]) for key in ("loss", "norm", "learning_rate")))' "$1"
}
