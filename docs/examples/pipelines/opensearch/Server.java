import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import org.opensearch.common.settings.Settings;
import org.opensearch.node.InternalSettingsPreparer;
import org.opensearch.node.Node;
import org.opensearch.transport.Netty4Plugin;

/** A node of OpenSearch from the artifacts of Maven. Arguments: its directory, its HTTP port. */
class Server extends Node {
    Server(Settings settings, Path directory) {
        super(InternalSettingsPreparer.prepareEnvironment(settings, Map.of(), directory, () -> "server"),
            List.of(Netty4Plugin.class), false);
    }

    public static void main(String[] args) throws Exception {
        Settings.Builder settings = Settings.builder().put("path.home", args[0]).put("http.port", args[1]);
        settings.put("transport.port", "0").put("discovery.type", "single-node");
        settings.put("transport.type", "netty4").put("http.type", "netty4");
        new Server(settings.build(), Path.of(args[0])).start();
        Thread.currentThread().join();
    }
}
