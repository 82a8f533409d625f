{
  description = "LaS attention as a kernel of the Hugging Face Hub";

  inputs.builder.url = "github:huggingface/kernels";

  outputs = { self, builder }: builder.lib.genKernelFlakeOutputs { inherit self; path = ./.; };
}
