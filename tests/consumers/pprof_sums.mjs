// Reads a profile with Datadog's decoder; prints its types, and the sums of its values by device and by category.
//     node pprof_sums.mjs DECODER PROFILE
import { readFileSync } from 'node:fs';
import { gunzipSync } from 'node:zlib';

const [decoder, file] = process.argv.slice(2);
const { Profile } = await import(decoder);
const profile = Profile.decode(gunzipSync(readFileSync(file)));
const text = (number) => profile.stringTable.strings[Number(number)];
const sums = { device: {}, category: {} };
for (const sample of profile.sample) {
  for (const label of sample.label) {
    const of = sums[text(label.key)];
    if (!of) continue;
    const sum = (of[text(label.str)] ??= profile.sampleType.map(() => 0));
    sample.value.forEach((value, at) => { sum[at] += Number(value); });
  }
}
const types = profile.sampleType.map((type) => text(type.type));
const functions = [...new Set(profile.function.map((it) => text(it.name)))];
console.log(JSON.stringify({ types, standard: text(profile.defaultSampleType), sums, functions }));
