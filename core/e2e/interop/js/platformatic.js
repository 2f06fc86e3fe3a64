// @platformatic/kafka in the interop matrix.
import { Consumer, Producer } from '@platformatic/kafka'
import { main } from './records.js'

const bytes = (text) => (text === null ? undefined : Buffer.from(text))

async function produce(broker, topic, batches, codec) {
  const producer = new Producer({ clientId: 'platformatic', bootstrapBrokers: [broker], autocreateTopics: true })
  for (const batch of batches) {
    const messages = batch.map(({ key, value, headers }) => ({
      topic,
      key: bytes(key),
      value: bytes(value),
      headers: new Map(Object.entries(headers).map(([k, v]) => [Buffer.from(k), Buffer.from(v)])),
    }))
    await producer.send({ messages, ...(codec === 'default' ? {} : { compression: codec }) })
  }
  await producer.close()
}

async function consume(broker, topic, group, print) {
  const consumer = new Consumer({ clientId: 'platformatic', bootstrapBrokers: [broker], groupId: group, autocommit: false })
  const stream = await consumer.consume({ topics: [topic], mode: 'committed', fallbackMode: 'earliest', maxWaitTime: 500 })
  const last = new Map()
  for await (const message of stream) {
    last.set(message.partition, message)
    if (print(message.partition, message.offset, message.key, message.value, message.headers)) break
  }
  await consumer.commit({
    offsets: [...last].map(([partition, m]) => ({ topic, partition, offset: m.offset + 1n, leaderEpoch: -1 })),
  })
  await consumer.close(true)
}

await main('platformatic', { produce, consume })
