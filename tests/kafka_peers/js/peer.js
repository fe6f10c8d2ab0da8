// Driver of kafkajs; see drivers.py for the commands.
const { CompressionTypes, Kafka, logLevel } = require('kafkajs');
const readline = require('readline');

const [command, bootstrap, topic, ...rest] = process.argv.slice(2);
const kafka = new Kafka({
  clientId: 'kafkajs', brokers: bootstrap.split(','), logLevel: logLevel.ERROR, retry: { retries: 20 },
});
const print = (line) => console.log(JSON.stringify(line));
const text = (data) => (data === null || data === undefined ? null : data.toString());

async function produce(codec) {
  const compression = { none: CompressionTypes.None, gzip: CompressionTypes.GZIP }[codec];
  const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1 });
  await producer.connect();
  let batch = [];
  // One partition in each call. In a call with several, kafkajs drops the records of a partition that
  // moves to a broker which has responded before, and reports success (kafkajs issue 1303).
  async function send() {
    const sent = batch;
    batch = [];
    for (const partition of new Set(sent.map((one) => one.message.partition))) {
      const some = sent.filter((one) => one.message.partition === partition);
      const [{ baseOffset }] = await producer.send({ topic, compression, messages: some.map((one) => one.message) });
      some.forEach(({ number }, index) => print({ number, partition, offset: Number(baseOffset) + index }));
    }
  }
  let number = 0;
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const { partition, key, value, headers } = JSON.parse(line);
    batch.push({ number: number++, message: { partition, key, value, headers: Object.fromEntries(headers) } });
    if (batch.length === 100) await send();
  }
  if (batch.length) await send();
  await producer.disconnect();
}

async function consume(groupId, _protocol, count) {
  const consumer = kafka.consumer({ groupId });
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  const ends = new Map();
  let found = 0;
  await new Promise((done) => {
    consumer.run({
      autoCommit: false,
      eachMessage: async ({ partition, message }) => {
        if (found >= count) return;
        found += 1;
        ends.set(partition, Number(message.offset) + 1);
        print({
          partition, offset: Number(message.offset), key: text(message.key), value: text(message.value),
          headers: Object.entries(message.headers).map(([name, value]) => [name, text(value)]),
        });
        if (found === count) done();
      },
    });
  });
  await consumer.commitOffsets([...ends].map(([partition, offset]) => ({ topic, partition, offset: `${offset}` })));
  await consumer.disconnect();
}

async function admin() {
  const client = kafka.admin();
  await client.connect();
  await client.createTopics({
    topics: [{
      topic, numPartitions: 3, replicationFactor: 3,
      configEntries: [{ name: 'retention.ms', value: '86400000' }],
    }],
  });
  await client.alterConfigs({
    validateOnly: false,
    resources: [{
      type: 2, name: topic,
      configEntries: [
        { name: 'retention.ms', value: '86400000' }, { name: 'cleanup.policy', value: 'delete,compact' },
      ],
    }],
  });
  await client.createPartitions({ topicPartitions: [{ topic, count: 5 }] });
  const { topics: [{ partitions }] } = await client.fetchTopicMetadata({ topics: [topic] });
  const { resources: [{ configEntries }] } = await client.describeConfigs({
    includeSynonyms: true, resources: [{ type: 2, name: topic }],
  });
  const setting = (name) => configEntries.find((one) => one.configName === name).configValue;
  const offsets = await client.fetchTopicOffsets(topic);
  const found = {
    partitions: partitions.length, replicas: partitions[0].replicas.length,
    retention: setting('retention.ms'), policy: setting('cleanup.policy'),
    listed: (await client.listTopics()).includes(topic),
    end: Number(offsets.find((one) => one.partition === 0).offset),
  };
  await client.deleteTopics({ topics: [topic] });
  print(found);
  await client.disconnect();
}

const commands = { produce: () => produce(...rest), consume: () => consume(rest[0], rest[1], Number(rest[2])), admin };
commands[command]().catch((error) => {
  console.error(error);
  process.exit(1);
});
