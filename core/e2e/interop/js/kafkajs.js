// kafkajs in the interop matrix.
import kafkajs from 'kafkajs'
import { main } from './records.js'

const { CompressionTypes, Kafka, Partitioners, logLevel } = kafkajs

const client = (broker) => new Kafka({ clientId: 'kafkajs', brokers: [broker], logLevel: logLevel.ERROR })

async function produce(broker, topic, batches, codec) {
  const compression = { default: undefined, gzip: CompressionTypes.GZIP }
  if (!(codec in compression)) throw new Error(`codec ${codec} is not in the matrix`)
  const producer = client(broker).producer({ createPartitioner: Partitioners.DefaultPartitioner })
  await producer.connect()
  for (const messages of batches) await producer.send({ topic, messages, compression: compression[codec] })
  await producer.disconnect()
}

async function consume(broker, topic, group, print) {
  const consumer = client(broker).consumer({ groupId: group, maxWaitTimeInMs: 500 })
  await consumer.connect()
  await consumer.subscribe({ topics: [topic], fromBeginning: true })
  const next = new Map()
  await new Promise((done, failed) => {
    consumer.on(consumer.events.CRASH, ({ payload }) => failed(payload.error))
    consumer
      .run({
        autoCommit: false,
        eachMessage: async ({ partition, message }) => {
          next.set(partition, (BigInt(message.offset) + 1n).toString())
          if (print(partition, message.offset, message.key, message.value, Object.entries(message.headers))) done()
        },
      })
      .catch(failed)
  })
  await consumer.commitOffsets([...next].map(([partition, offset]) => ({ topic, partition, offset })))
  await consumer.disconnect()
}

await main('kafkajs', { produce, consume })
