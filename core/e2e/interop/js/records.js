// What the JavaScript clients have in common: the command line, the records,
// and the line that is printed for one. ../README.md has the contract.

const batchSize = 1000

// Record i of a client; null is absent.
function record(client, i) {
  const r = { key: `k${i % 97}`, value: `${i}-${'x'.repeat(i % 200)}`, headers: { client, n: `${i}` } }
  if (i % 100 === 50) return { ...r, key: `t${i}`, value: null }
  if (i % 10 === 9) return { ...r, key: null }
  return r
}

// The records FROM to FROM+N-1 in arrays of a reasonable size.
function* batches(client, from, n) {
  for (let start = from; start < from + n; start += batchSize) {
    const end = Math.min(start + batchSize, from + n)
    yield Array.from({ length: end - start }, (_, i) => record(client, start + i))
  }
}

const text = (b) => (b === null || b === undefined ? null : b.toString())

// line prints a record; headers are pairs.
function line(partition, offset, key, value, headers) {
  const flat = []
  for (const [k, v] of headers) flat.push(text(k), text(v))
  return JSON.stringify({ partition, offset: Number(offset), key: text(key), payload: text(value), headers: flat }) + '\n'
}

// main runs `produce` and `consume` of a client. consume calls its `print` for
// each record; once that has answered true, there are enough.
export async function main(name, { produce, consume }) {
  const [what, broker, topic, ...rest] = process.argv.slice(2)
  setTimeout(() => fail(name, new Error('not done within two minutes')), 120_000).unref()
  try {
    if (what === 'produce' && rest.length === 3) {
      await produce(broker, topic, batches(name, Number(rest[0]), Number(rest[1])), rest[2])
    } else if (what === 'consume' && rest.length === 2) {
      const lines = []
      const n = Number(rest[1])
      await consume(broker, topic, rest[0], (...fields) => lines.push(line(...fields)) >= n)
      await new Promise((done) => process.stdout.write(lines.join(''), done))
    } else {
      throw new Error('want: produce BROKER TOPIC FROM N CODEC, or consume BROKER TOPIC GROUP N')
    }
  } catch (err) {
    fail(name, err)
  }
}

function fail(name, err) {
  console.error(`${name}:`, err)
  process.exit(1)
}
