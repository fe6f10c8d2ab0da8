// Driver of franz-go; see drivers.py for the commands.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

type record struct {
	Partition int32       `json:"partition"`
	Offset    int64       `json:"offset"`
	Key       *string     `json:"key"`
	Value     *string     `json:"value"`
	Headers   [][2]string `json:"headers"`
}

type stored struct {
	Number    int   `json:"number"`
	Partition int32 `json:"partition"`
	Offset    int64 `json:"offset"`
}

type shown struct {
	Partitions int    `json:"partitions"`
	Replicas   int    `json:"replicas"`
	Retention  string `json:"retention"`
	Policy     string `json:"policy"`
	Listed     bool   `json:"listed"`
	End        int64  `json:"end"`
}

var printing sync.Mutex

func print(line any) {
	printing.Lock()
	defer printing.Unlock()
	check(json.NewEncoder(os.Stdout).Encode(line))
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func client(options ...kgo.Opt) *kgo.Client {
	found, err := kgo.NewClient(append(options, kgo.SeedBrokers(strings.Split(os.Args[2], ",")...))...)
	check(err)
	return found
}

func bytes(text *string) []byte {
	if text == nil {
		return nil
	}
	return []byte(*text)
}

func text(data []byte) *string {
	if data == nil {
		return nil
	}
	found := string(data)
	return &found
}

func produce(ctx context.Context, topic, codec string) {
	codecs := map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	}
	producer := client(
		kgo.ProducerBatchCompression(codecs[codec]),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.AllowAutoTopicCreation(),
	)
	defer producer.Close()
	lines := bufio.NewScanner(os.Stdin)
	for number := 0; lines.Scan(); number++ {
		var sent record
		check(json.Unmarshal(lines.Bytes(), &sent))
		one := &kgo.Record{
			Topic: topic, Partition: sent.Partition, Key: bytes(sent.Key), Value: bytes(sent.Value),
		}
		for _, header := range sent.Headers {
			one.Headers = append(one.Headers, kgo.RecordHeader{Key: header[0], Value: []byte(header[1])})
		}
		producer.Produce(ctx, one, func(done *kgo.Record, err error) {
			check(err)
			print(stored{number, done.Partition, done.Offset})
		})
	}
	check(producer.Flush(ctx))
}

func consume(ctx context.Context, topic, group, protocol string, count int) {
	options := []kgo.Opt{
		kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic), kgo.DisableAutoCommit(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.Balancers(kgo.RangeBalancer()),
	}
	if protocol == "consumer" {
		options = append(options, kgo.ServerSideBalancer())
	}
	consumer := client(options...)
	defer consumer.Close()
	var taken []*kgo.Record
	for len(taken) < count {
		fetched := consumer.PollFetches(ctx)
		check(fetched.Err())
		for _, one := range fetched.Records() {
			if len(taken) == count {
				break
			}
			taken = append(taken, one)
			line := record{one.Partition, one.Offset, text(one.Key), text(one.Value), [][2]string{}}
			for _, header := range one.Headers {
				line.Headers = append(line.Headers, [2]string{header.Key, string(header.Value)})
			}
			print(line)
		}
	}
	check(consumer.CommitRecords(ctx, taken...))
}

func admin(ctx context.Context, topic string) {
	connected := client()
	defer connected.Close()
	admin := kadm.NewClient(connected)
	retention, policy := "86400000", "compact"
	_, err := admin.CreateTopic(ctx, 3, 3, map[string]*string{"retention.ms": &retention}, topic)
	check(err)
	altered, err := admin.AlterTopicConfigs(
		ctx, []kadm.AlterConfig{{Op: kadm.AppendConfig, Name: "cleanup.policy", Value: &policy}}, topic,
	)
	check(err)
	check(altered[0].Err)
	extended, err := admin.UpdatePartitions(ctx, 5, topic)
	check(err)
	check(extended.Error())
	topics, err := admin.ListTopics(ctx, topic)
	check(err)
	configs, err := admin.DescribeTopicConfigs(ctx, topic)
	check(err)
	found := shown{
		Partitions: len(topics[topic].Partitions),
		Replicas:   len(topics[topic].Partitions[0].Replicas),
	}
	for _, one := range configs[0].Configs {
		switch one.Key {
		case "retention.ms":
			found.Retention = one.MaybeValue()
		case "cleanup.policy":
			found.Policy = one.MaybeValue()
		}
	}
	all, err := admin.ListTopics(ctx)
	check(err)
	found.Listed = all.Has(topic)
	ends, err := admin.ListEndOffsets(ctx, topic)
	check(err)
	check(ends.Error())
	found.End = ends[topic][0].Offset
	deleted, err := admin.DeleteTopics(ctx, topic)
	check(err)
	check(deleted.Error())
	print(found)
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Second)
	defer cancel()
	switch os.Args[1] {
	case "produce":
		produce(ctx, os.Args[3], os.Args[4])
	case "consume":
		count, err := strconv.Atoi(os.Args[6])
		check(err)
		consume(ctx, os.Args[3], os.Args[4], os.Args[5], count)
	case "admin":
		admin(ctx, os.Args[3])
	}
}
