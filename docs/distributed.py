import torch
import torch.distributed as dist
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh
from triport import ops

device = "cuda" if torch.cuda.is_available() else "cpu"
dist.init_process_group()
mesh = init_device_mesh(device, (dist.get_world_size(),))
torch.manual_seed(0)
a = distribute_tensor(torch.randn(512, 256), mesh, [Replicate()])
b = distribute_tensor(torch.randn(256, 1000), mesh, [Shard(1)])     # each rank has some columns
y = ops.matmul_softmax(a, b, dim=-1)                                # rows sum to 1 over all ranks
total = y.full_tensor().sum(-1)
if dist.get_rank() == 0:
    print(y.placements, "rows sum to 1 within", (total - 1).abs().max().item())
dist.destroy_process_group()
