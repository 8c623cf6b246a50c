// What applications do every day, with kafkajs: see tests/clients/everyday.py.
'use strict'

const { Kafka, CompressionTypes, ConfigResourceTypes, logLevel } = require('kafkajs')
const { version } = require('kafkajs/package.json')

const SECONDS_MAX = 30
const plan = JSON.parse(process.argv[2])
const kafka = new Kafka({
  clientId: 'everyday', brokers: plan.bootstrap.split(','), logLevel: logLevel.ERROR,
})

async function produce (numbers) {
  const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1 })
  await producer.connect()
  const messages = numbers.map((number) => ({
    key: `k${number}`,
    value: String(number),
    partition: number % 2,
    timestamp: String(plan.time_ms + 1000 * number),
    headers: { number: String(number) },
  }))
  const answers = await producer.send({
    topic: plan.topic, acks: -1, compression: CompressionTypes.GZIP, messages,
  })
  await producer.disconnect()
  // One answer a partition: the offset of its first record.
  const next = {}
  for (const answer of answers) next[answer.partition] = Number(answer.baseOffset)
  return numbers.map((number) => [number % 2, next[number % 2]++])
}

// Reads `count` records; `begin` is called once the consumer runs.
async function read (groupId, count, commits, begin = () => {}) {
  const consumer = kafka.consumer({ groupId, heartbeatInterval: 500 })
  await consumer.connect()
  await consumer.subscribe({ topics: [plan.topic], fromBeginning: true })
  const found = {}
  const ends = {}
  let left = count
  await new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error(`${left} records did not come`)), SECONDS_MAX * 1000)
    consumer.run({
      autoCommit: false,
      eachMessage: async ({ partition, message }) => {
        const number = Number(message.value.toString())
        if (message.key.toString() !== `k${number}`) reject(new Error('another key'))
        if (message.headers.number.toString() !== String(number)) reject(new Error('another header'))
        if (left > 0) {
          (found[partition] ||= []).push(number)
          ends[partition] = Number(message.offset) + 1
        }
        if (--left === 0) { clearTimeout(timer); resolve() }
      },
    }).catch(reject)
    begin(consumer)
  })
  if (commits) {
    await consumer.commitOffsets(Object.entries(ends).map(([partition, offset]) => (
      { topic: plan.topic, partition: Number(partition), offset: String(offset) })))
  }
  await consumer.disconnect()
  return found
}

async function committed (admin) {
  const [answer] = await admin.fetchOffsets({ groupId: plan.group, topics: [plan.topic] })
  return answer.partitions.sort((a, b) => a.partition - b.partition).map((one) => Number(one.offset))
}

async function main () {
  const { topic, group } = plan
  const admin = kafka.admin()
  await admin.connect()
  await admin.createTopics({ waitForLeaders: true, topics: [{ topic, numPartitions: 2, replicationFactor: 3 }] })
  const { topics: [described] } = await admin.fetchTopicMetadata({ topics: [topic] })
  const result = { client: `kafkajs ${version}`, partitions: described.partitions.length }
  result.offsets = await produce(plan.first)
  result.read = await read(group, plan.first.length, true)
  result.committed = await committed(admin)
  await produce(plan.second)
  result.read_on = await read(group, plan.second.length, true)
  const times = await admin.fetchTopicOffsetsByTimestamp(topic, plan.since_ms)
  const offset = times.find((one) => one.partition === 1).offset
  result.since_offset = Number(offset)
  const since = await read(`${group}-since`, 1, false, (consumer) => {
    consumer.pause([{ topic, partitions: [0] }])
    consumer.seek({ topic, partition: 1, offset })
  })
  result.since = since[1][0]
  const resource = { type: ConfigResourceTypes.TOPIC, name: topic }
  await admin.alterConfigs({
    validateOnly: false,
    resources: [{ ...resource, configEntries: [{ name: 'retention.ms', value: '3600000' }] }],
  })
  // Any server answers, as with Kafka; one that is a moment behind tells what was.
  for (let asked = 0; asked < 50 && result.retention_ms !== '3600000'; asked++) {
    const settings = await admin.describeConfigs({
      includeSynonyms: false, resources: [{ ...resource, configNames: ['retention.ms'] }],
    })
    result.retention_ms = settings.resources[0].configEntries[0].configValue
    await new Promise((resolve) => setTimeout(resolve, 100))
  }
  const { groups } = await admin.listGroups()
  result.is_listed = groups.some((one) => one.groupId === group)
  result.group_offsets = await committed(admin)
  await admin.deleteTopics({ topics: [topic] })
  await admin.disconnect()
  return result
}

main().then(
  (result) => console.log(JSON.stringify(result)),
  (error) => { console.error(error); process.exitCode = 1 },
)
