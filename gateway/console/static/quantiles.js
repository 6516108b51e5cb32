// Cumulative histograms: pairs of an upper bound in seconds and a count; the last pair has no bound.

// Counts added between `then` and `now`; null: not known, or the process was restarted in between.
export function grown(then, now) {
  if (!then || !now || then.length !== now.length) return null;
  const counts = now.map(([bound, count], at) => [bound, count - then[at][1]]);
  return counts.every(([, count]) => count >= 0) ? counts : null;
}

// The sum of histograms; null: none is known.
export function summed(histograms) {
  const known = histograms.filter((each) => each !== null);
  if (!known.length || known.some((each) => each.length !== known[0].length)) return null;
  return known[0].map(([bound], at) => [bound, known.reduce((sum, each) => sum + each[at][1], 0)]);
}

// A quantile, interpolated linearly within its bucket. Above all bounds it is the highest bound. NaN: no values.
export function quantile(counts, fraction) {
  const all = counts?.at(-1)[1] ?? 0;
  if (!all) return NaN;
  const wanted = fraction * all;
  let below = 0;
  let lower = 0;
  for (const [bound, count] of counts) {
    if (bound === null) return lower;
    if (count >= wanted) return lower + ((bound - lower) * (wanted - below)) / (count - below);
    below = count;
    lower = bound;
  }
  return NaN;
}
