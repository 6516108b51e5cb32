// Histograms: pairs of a bound in seconds and how many took at most that; the last one has no bound.

// What has come to `now` since `then`; null: not known, or the process was started again in between.
export function grown(then, now) {
  if (!then || !now || then.length !== now.length) return null;
  const counts = now.map(([bound, count], at) => [bound, count - then[at][1]]);
  return counts.every(([, count]) => count >= 0) ? counts : null;
}

// All of them as one; null: none is known.
export function summed(histograms) {
  const known = histograms.filter((each) => each !== null);
  if (!known.length || known.some((each) => each.length !== known[0].length)) return null;
  return known[0].map(([bound], at) => [bound, known.reduce((sum, each) => sum + each[at][1], 0)]);
}

// So many took less than this: between the bounds of the bucket where it lies, as if they were spread evenly there. What
// lies above all bounds is told as the highest of them. NaN: there was none.
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
